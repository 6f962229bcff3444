"""Tests of the verl engine need verl: `make test-verl` installs it."""

import pytest

pytest.importorskip("verl", reason="verl is not installed; `make test-verl` installs it")
