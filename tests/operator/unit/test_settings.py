"""Settings are read once from the environment, and a wrong one is named."""

from __future__ import annotations

import pytest

from atom_operator.__main__ import main
from atom_operator.settings import EndpointSettings, LeaseSettings, OperatorSettings, SettingsError


def test_an_empty_environment_gives_the_defaults() -> None:
    assert OperatorSettings.from_env({}) == OperatorSettings()


def test_every_variable_is_read() -> None:
    settings = OperatorSettings.from_env(
        {
            "ATOM_OPERATOR_ENGINE_IMAGE_CPU": "c:1",
            "ATOM_OPERATOR_ENGINE_IMAGE_AMD": "a:1",
            "ATOM_OPERATOR_NAMESPACES": "one, two,",
            "ATOM_OPERATOR_RESYNC_SECONDS": "60",
            "ATOM_OPERATOR_WORKERS": "2",
            "ATOM_OPERATOR_HEALTH_PORT": "0",
            "ATOM_OPERATOR_METRICS_PORT": "9090",
            "ATOM_OPERATOR_LOG_LEVEL": "debug",
        }
    )
    assert settings == OperatorSettings(
        engine_images={"amd": "a:1", "cpu": "c:1"},
        namespaces=("one", "two"),
        resync_seconds=60.0,
        workers=2,
        endpoints=EndpointSettings(health_port=0, metrics_port=9090),
        log_level="DEBUG",
    )


@pytest.mark.parametrize("value", ["0", "many", "65"])
def test_a_number_outside_its_range_is_named_with_the_range(value: str) -> None:
    with pytest.raises(SettingsError, match=r"ATOM_OPERATOR_WORKERS=.* from 1 to 64"):
        OperatorSettings.from_env({"ATOM_OPERATOR_WORKERS": value})


def test_the_program_ends_with_one_line_for_a_wrong_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATOM_OPERATOR_WORKERS", "-1")
    assert main([]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_lease_needs_to_know_whose_and_where_it_is() -> None:
    environ = {
        "ATOM_OPERATOR_LEASE": "atom-operator",
        "ATOM_OPERATOR_POD_NAMESPACE": "atom-system",
        "ATOM_OPERATOR_POD_NAME": "atom-operator-abc",
    }
    settings = OperatorSettings.from_env(environ)
    assert settings.lease == LeaseSettings("atom-system", "atom-operator", "atom-operator-abc")
    elsewhere = {**environ, "ATOM_OPERATOR_LEASE_NAMESPACE": "kube-system"}
    shared = OperatorSettings.from_env(elsewhere).lease
    assert shared == LeaseSettings("kube-system", "atom-operator", "atom-operator-abc")
    del environ["ATOM_OPERATOR_POD_NAME"]
    with pytest.raises(SettingsError, match="ATOM_OPERATOR_POD_NAME must be set"):
        OperatorSettings.from_env(environ)
