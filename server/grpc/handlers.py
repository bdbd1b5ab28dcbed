"""The gRPC services of a node: handlers of every call, over the services that listeners share."""

from __future__ import annotations

from streamlog.server.composition import Services
from streamlog.server.grpc import admin, compaction, kv, log, staging, stream, transactions
from streamlog.server.grpc.calls import Calls, Handlers, PrincipalOf

NAMES = (
    log.SERVICE,
    transactions.SERVICE,
    stream.SERVICE,
    kv.SERVICE,
    admin.SERVICE,
    staging.SERVICE,
    compaction.SERVICE,
)


def handlers(services: Services, principal_of: PrincipalOf) -> list[Handlers]:
    resources = services.resources
    calls, budgets, drain = Calls(resources, principal_of), resources.budgets, resources.drain
    return [
        log.GrpcLog(
            services.produce,
            services.fetch,
            services.log,
            services.transactions,
            calls=calls,
            resources=resources,
        ).handlers(),
        transactions.GrpcTransactions(services.transactions, calls=calls).handlers(),
        stream.GrpcStream(
            services.streams,
            calls=calls,
            budgets=budgets,
            drain=drain,
            metrics=resources.metrics,
        ).handlers(),
        staging.GrpcStaging(services.staging, calls=calls, budgets=budgets).handlers(),
        kv.GrpcKV(services.kv, calls=calls, budgets=budgets, drain=drain).handlers(),
        admin.GrpcAdmin(
            services.admin,
            services.configs,
            services.objects,
            services.locating,
            services.status,
            services.quotas,
            calls=calls,
        ).handlers(),
        compaction.GrpcCompaction(services.merging, calls=calls, drain=drain).handlers(),
    ]
