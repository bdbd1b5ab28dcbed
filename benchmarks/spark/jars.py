"""Java libraries of these benchmarks: Maven downloads them once into the tools folder.

Nothing of them is part of the package. `mvn` and `java` are the machine's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from streamlog.demo.go_tools import locked, tools_folder
from streamlog.errors import Unavailable

CENTRAL = "https://repo.maven.apache.org/maven2"
KAFKA = "4.1.1"
LOG4J = "2.25.1"
HADOOP = "3.4.1"
CONNECTOR_ELSE = ("4.2.0", "4.1.0-preview1")
"""Spark's Kafka source and its library for delegation tokens, in a version that is used if none is
published for the installed PySpark."""


class Artifact(NamedTuple):
    group: str
    name: str
    version: str
    classifier: str = ""
    """Of a jar beside the main one, such as `test`; it is fetched without those that it needs."""


class Jars(NamedTuple):
    paths: list[Path]
    version: str
    """The version of the first artifact."""


def kafka_jars() -> Jars:
    """Apache Kafka, server and tools. Errors: Unavailable."""
    kafka = [Artifact("org.apache.kafka", name, KAFKA) for name in ("kafka_2.13", "kafka-tools")]
    logging = [
        Artifact("org.apache.logging.log4j", name, LOG4J)
        for name in ("log4j-core", "log4j-slf4j-impl", "log4j-1.2-api")
    ]
    return Jars(_jars(f"kafka-{KAFKA}", [*kafka, *logging]), KAFKA)


def kafka_storage_test_jars() -> Jars:
    """Kafka's remote storage in a folder, which it has for tests. Errors: Unavailable."""
    tests = Artifact("org.apache.kafka", "kafka-storage", KAFKA, "test")
    return Jars(_jars(f"kafka-storage-test-{KAFKA}", [tests]), KAFKA)


def hadoop_jars() -> Jars:
    """Hadoop's mini cluster: name node and data nodes in one process. Errors: Unavailable."""
    cluster = Artifact("org.apache.hadoop", "hadoop-client-minicluster", HADOOP)
    # It asks for these, and does not say so.
    besides = [
        Artifact("junit", "junit", "4.13.2"),
        Artifact("commons-cli", "commons-cli", "1.9.0"),
        Artifact("commons-logging", "commons-logging", "1.3.4"),
        Artifact("org.slf4j", "slf4j-nop", "1.7.36"),
        # Once part of Java itself.
        Artifact("javax.xml.bind", "jaxb-api", "2.3.1"),
    ]
    return Jars(_jars(f"hadoop-{HADOOP}", [cluster, *besides]), HADOOP)


def connector_jars() -> Jars:
    """Spark's Kafka source, without libraries that PySpark has itself. Errors: Unavailable."""
    import pyspark

    known = {_artifact_name(one) for one in Path(pyspark.__file__).parent.glob("jars/*.jar")}
    source, tokens = CONNECTOR_ELSE
    try:
        version = pyspark.__version__
        found = _jars(f"spark-kafka-{version}", _connector(version, version))
    except Unavailable:
        version = source
        found = _jars(f"spark-kafka-{source}-{tokens}", _connector(source, tokens))
    return Jars([one for one in found if _artifact_name(one) not in known], version)


def _connector(version: str, tokens: str) -> list[Artifact]:
    return [
        Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", version),
        Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", tokens),
    ]


def _artifact_name(jar: Path) -> str:
    return re.split(r"-\d", jar.name, maxsplit=1)[0]


def _jars(name: str, artifacts: Sequence[Artifact]) -> list[Path]:
    folder = tools_folder() / name
    if not folder.is_dir():
        with locked(tools_folder() / f"{name}.lock"):
            if not folder.is_dir():
                _fetch(folder, artifacts)
    return sorted(folder.glob("*.jar"))


def _fetch(folder: Path, artifacts: Sequence[Artifact]) -> None:
    for program, package in (("java", "openjdk-17-jre-headless"), ("mvn", "maven")):
        if shutil.which(program) is None:
            raise Unavailable(
                f"{program} is not on the PATH, and is needed once to fetch {artifacts[0].name}: "
                f"install it (Debian, Ubuntu: apt install {package})"
            )
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        pom = Path(place, "pom.xml")
        pom.write_text(_pom(artifacts))
        done = subprocess.run(
            ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies",
             "-DincludeScope=runtime", f"-DoutputDirectory={place}/lib"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise Unavailable(f"Maven could not fetch {artifacts[0].name}: {done.stdout[:600]}")
        os.replace(Path(place, "lib"), folder)


def _pom(artifacts: Sequence[Artifact]) -> str:
    wanted = "".join(
        f"<dependency><groupId>{one.group}</groupId><artifactId>{one.name}</artifactId>"
        f"<version>{one.version}</version>{_alone(one.classifier)}</dependency>"
        for one in artifacts
    )
    # Spark's poms name a mirror of Central by this id, which some networks block.
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>streamlog</groupId><artifactId>benchmark-jars</artifactId><version>1</version>"
        "<packaging>pom</packaging><repositories><repository><id>gcs-maven-central-mirror</id>"
        f"<url>{CENTRAL}</url></repository></repositories>"
        f"<dependencies>{wanted}</dependencies></project>"
    )


def _alone(classifier: str) -> str:
    if not classifier:
        return ""
    every = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
    return f"<classifier>{classifier}</classifier><exclusions>{every}</exclusions>"
