"""The cache never goes back, finds by label, and gives everybody a copy of their own."""

from __future__ import annotations

from typing import Any

import pytest

from atom_operator.cluster.object_cache import ObjectCache, StoredObject
from atom_operator.constants import LABEL_DEPLOYMENT, LABEL_LEARNED

CHAT = {LABEL_DEPLOYMENT: "chat"}


def manifest(version: str = "1", name: str = "one", **changes: Any) -> dict[str, Any]:
    metadata = {
        "namespace": changes.pop("namespace", "default"),
        "name": name,
        "resourceVersion": version,
        "labels": changes.pop("labels", CHAT),
    }
    return {"metadata": metadata, **changes}


def item(version: str = "1", name: str = "one", **changes: Any) -> StoredObject:
    return StoredObject.of(manifest(version, name, **changes))


def versions(cache: ObjectCache, labels: dict[str, str] | None = None) -> dict[str, str]:
    found = cache.select("default", labels or CHAT)
    return {entry["metadata"]["name"]: entry["metadata"]["resourceVersion"] for entry in found}


@pytest.mark.parametrize(
    ("version", "news", "kept"), [("9", False, "10"), ("10", False, "10"), ("11", True, "11")]
)
def test_only_a_newer_version_is_news(version: str, news: bool, kept: str) -> None:
    cache = ObjectCache()
    cache.put(item("10"))
    assert cache.put(item(version)) is news
    assert versions(cache) == {"one": kept}


def test_a_deletion_that_comes_late_does_not_take_away_the_namesake() -> None:
    cache = ObjectCache()
    cache.put(item("12"))  # made anew, as the answer to our write told
    assert not cache.remove(item("11"))
    assert versions(cache) == {"one": "12"}
    assert cache.remove(item("13"))
    assert versions(cache) == {}


def test_a_listing_removes_what_is_gone_and_keeps_what_is_newer_than_itself() -> None:
    cache = ObjectCache()
    for name, version in (("stays", "1"), ("changed", "2"), ("gone", "3"), ("ours", "21")):
        cache.put(item(version, name))
    news = cache.replace([item("1", "stays"), item("15", "changed")], "20")
    assert sorted(found.name for found in news) == ["changed", "gone"]
    assert versions(cache) == {"stays": "1", "changed": "15", "ours": "21"}


def test_a_cluster_that_was_put_back_to_an_older_state_is_believed() -> None:
    cache = ObjectCache()
    cache.replace([item("90"), item("91", "lost")], "100")
    cache.replace([item("30")], "40")
    assert versions(cache) == {"one": "30"}


def test_objects_are_found_by_every_label_that_was_asked_for() -> None:
    cache = ObjectCache()
    learned = {**CHAT, LABEL_LEARNED: "true"}
    cache.put(item(name="a", labels=learned))
    cache.put(item(name="b"))
    cache.put(item(name="c", labels={LABEL_DEPLOYMENT: "other", LABEL_LEARNED: "true"}))
    cache.put(item(name="a", namespace="elsewhere", labels=learned))
    assert list(versions(cache)) == ["a", "b"]
    assert list(versions(cache, {LABEL_LEARNED: "true"})) == ["a", "c"]
    assert list(versions(cache, learned)) == ["a"]
    assert list(versions(cache, {LABEL_DEPLOYMENT: "nobody"})) == []


def test_an_object_whose_label_changed_is_found_by_the_new_one_only() -> None:
    cache = ObjectCache()
    cache.put(item("1"))
    cache.put(item("2", labels={LABEL_DEPLOYMENT: "other"}))
    assert versions(cache) == {}
    assert versions(cache, {LABEL_DEPLOYMENT: "other"}) == {"one": "2"}


def test_a_reader_may_change_what_it_got() -> None:
    cache = ObjectCache()
    cache.put(item(spec={"replicas": 1}))
    cache.select("default", CHAT)[0]["spec"]["replicas"] = 7
    assert cache.select("default", CHAT)[0]["spec"] == {"replicas": 1}


def test_what_is_read_is_what_a_list_would_have_shown() -> None:
    shown = manifest(apiVersion="v1", kind="Pod", status={"podIP": "10.0.0.7"})
    shown["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    expected = manifest(status={"podIP": "10.0.0.7"})
    assert StoredObject.of(shown).manifest() == expected
