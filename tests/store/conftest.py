"""Lets failing asserts of the contract suite explain themselves."""

import pytest

for module in ("store_suite", "store_runs", "store_submissions", "store_claims"):
    pytest.register_assert_rewrite(f"batchor_core.testing.{module}")
