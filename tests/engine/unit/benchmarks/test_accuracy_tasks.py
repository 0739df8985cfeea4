"""The tasks of `benchmarks.accuracy`: drawn once, of what the machine has."""

from __future__ import annotations

import importlib.resources
import json
from pathlib import Path

import pytest
import yaml

from benchmarks.accuracy.__main__ import FORMS, SCORES, Found, table
from benchmarks.accuracy.tasks import CONTINENTS, SUMS, TASKS, WORDS, write_tasks

COUNT = 40
PLACES = ("Africa", "America", "Asia", "Europe")


@pytest.fixture(scope="module")
def zones() -> Path:
    return Path(str(importlib.resources.files("tzdata") / "zoneinfo" / "zone.tab"))


def documents(folder: Path, task: str) -> list[dict[str, object]]:
    config = yaml.safe_load((folder / f"{task}.yaml").read_text(encoding="utf-8"))
    (path,) = config["dataset_kwargs"]["data_files"].values()
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_each_task_has_so_many_questions_once(tmp_path: Path, zones: Path) -> None:
    write_tasks(tmp_path, zones, COUNT)
    for task in TASKS:
        found = [json.dumps(each, sort_keys=True) for each in documents(tmp_path, task)]
        assert len(found) == len(set(found)) == COUNT, task


def test_a_second_run_asks_the_same(tmp_path: Path, zones: Path) -> None:
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()
        write_tasks(folder, zones, COUNT)
    for task in TASKS:
        one, other = (documents(folder, task) for folder in folders)
        assert one == other, task


def test_answers_are_right(tmp_path: Path, zones: Path) -> None:
    write_tasks(tmp_path, zones, COUNT)
    places = {str(each["city"]): each["place"] for each in documents(tmp_path, CONTINENTS)}
    text = zones.read_text(encoding="utf-8")
    for city, place in places.items():
        ends = f"/{city.replace(' ', '_')}"
        zones_of = [line.split("\t")[2] for line in text.splitlines() if line[:1] != "#"]
        found = {zone.split("/")[0] for zone in zones_of if zone.endswith(ends)}
        assert PLACES[int(str(place))] in found, city
    for each in documents(tmp_path, SUMS):
        assert int(str(each["sum"])) == int(str(each["a"])) + int(str(each["b"]))
    for each in documents(tmp_path, WORDS):
        assert str(each["word"]).rstrip(".").isalpha()


def test_more_questions_than_there_are_are_refused(tmp_path: Path, zones: Path) -> None:
    with pytest.raises(ValueError, match="Africa: there are 52, and 250000 are"):
        write_tasks(tmp_path, zones, 1_000_000)


def test_the_table_has_a_column_for_each_form() -> None:
    scores = {task: {score: 0.25 for _, score, _, _ in SCORES} for task in TASKS}
    found = [Found(form, scores, 12.0) for form in FORMS.values()]
    head, rule, *rows = table(found, COUNT)[: 3 + len(SCORES)]
    assert head.count("|") == rule.count("|") == len(FORMS) + 2
    assert [row.split("|")[1].strip() for row in rows] == [*(s[2] for s in SCORES), "seconds"]
    assert rows[0].count("0.250") == len(FORMS)
