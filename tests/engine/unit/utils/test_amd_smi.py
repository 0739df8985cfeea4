"""Facts and memory of AMD's cards by amdsmi, from answers as its reference has them."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from atom.utils import amd_memory
from atom.utils.amd_smi import AmdSmiError, CardFacts, read_cards
from tests.support.operator.fake_amdsmi import AmdSmiLibraryException, fake_amdsmi


@pytest.fixture
def amdsmi(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = fake_amdsmi()
    monkeypatch.setitem(sys.modules, "amdsmi", module)
    return module


def test_a_card_says_what_it_is(amdsmi: ModuleType) -> None:
    card, guest = read_cards()
    assert card == CardFacts(
        "0000:c4:00.0", "AMD Instinct MI300X", "6.12.12", "DPX", "NPS1", 206141652992, 297746432
    )
    assert guest == CardFacts("0000:c5:00.0", None, None, None, None, None, 26079232)
    assert amdsmi.amdsmi_get_processor_handles() == [], "the library is shut down behind it"


def test_the_librarys_memory_counts_before_the_tools(
    amdsmi: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amd_memory, "_told_by_tool", lambda address: 7)
    assert amd_memory.used_bytes("0000:C4:00.0") == 297746432
    assert amd_memory.used_bytes("0000:c5:00.0") == 26079232
    assert amd_memory.used_bytes("0000:c6:00.0") == 7


def test_a_driver_that_is_not_loaded_leaves_it_to_the_tool(
    amdsmi: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise AmdSmiLibraryException("AMDSMI_STATUS_DRIVER_NOT_LOADED")

    monkeypatch.setattr(amdsmi, "amdsmi_init", fails)
    monkeypatch.setattr(amd_memory, "_told_by_tool", lambda address: 7)
    with pytest.raises(AmdSmiError, match="DRIVER_NOT_LOADED"):
        read_cards()
    with caplog.at_level("INFO"):
        assert amd_memory.used_bytes("0000:c4:00.0") == 7
    assert "AMDSMI_STATUS_DRIVER_NOT_LOADED" in caplog.text


def test_a_machine_without_the_package_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    with pytest.raises(AmdSmiError, match="amdsmi: ModuleNotFoundError"):
        read_cards()
