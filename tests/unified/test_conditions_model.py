"""Conditional appends and fencing tokens of a unified log against a list, with power cuts."""

from __future__ import annotations

from streamlog.runtime.rand import SeededRandom
from streamlog.testing.torn_folder import TornTree
from tests.log.conditions_model import MODEL, ConditionsMachine
from tests.unified.harness import UnifiedLogUnderTest


class UnifiedConditionsMachine(ConditionsMachine):
    def under_test(self) -> UnifiedLogUnderTest:
        tree = TornTree(SeededRandom(5))
        return UnifiedLogUnderTest(
            lambda: tree, {"internal.segment.bytes": "700"}, cut_power=tree.crash
        )


UnifiedConditionsMachine.TestCase.settings = MODEL
TestUnifiedConditionsModel = UnifiedConditionsMachine.TestCase
