"""The check of waits refuses what time decides, and nothing that a condition decides."""

import pytest

from tools.suite.waits import hopeful

SHORT = "subprocess.run(['a'], timeout=60)"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("time.sleep(0.2)", "time.sleep of a constant"),
        ("SETTLED = 3\ntime.sleep(SETTLED)", "time.sleep of a constant"),
        ("async def f():\n    await asyncio.sleep(0.01)", "asyncio.sleep of a constant"),
        ("while not ready():\n    time.sleep(pause)", "a poll of its own"),
        ("while True:\n    if ready():\n        break\n    time.sleep(pause)", "a poll of its own"),
        ("async def f():\n  while not g():\n    await asyncio.sleep(0.1)", "a poll of its own"),
        ("wait_until(ready, 'it is ready', 5)", "gives up after 5 s"),
        ("async def f():\n    await eventually(ready, 'ready', seconds=2.5)", "after 2.5 s"),
        ("async def f():\n    await waiting.within(work, 'done', 9)", "after 9 s"),
        ("async def f():\n    await asyncio.wait_for(work, timeout=1)", "after 1 s"),
        ("async def f():\n    async with asyncio.timeout(10): ...", "after 10 s"),
        (SHORT, "after 60 s"),
        ("LIMIT = 30\nprocess.communicate(timeout=LIMIT)", "after 30 s"),
    ],
)
def test_what_time_decides_is_named_with_its_place(source: str, problem: str) -> None:
    (found,) = hopeful("some.py", f"\n{source}\n")
    place, _, told = found.partition(": ")
    assert problem in told
    assert place == f"some.py:{source.count(chr(10), 0, source.index(problem_call(source))) + 2}"


def problem_call(source: str) -> str:
    """Return the text at which the call begins."""
    calls = ("time.sleep", "asyncio.sleep", "wait_until", "eventually", "waiting.within",
             "asyncio.wait_for", "asyncio.timeout", "subprocess", "process.comm")  # fmt: skip
    return next(call for call in calls if call in source)


@pytest.mark.parametrize(
    "source",
    [
        "wait_until(ready, 'it is ready')",
        "time.sleep(steps * pause)",  # a double's own pace, which the test decides
        "async def f():\n    await asyncio.sleep(0)",  # the others' turn, no time
        "from tests.support.virtual_time import run_virtually\nasync def f():\n"
        "    await asyncio.sleep(60)",
        "while True:\n    serve()\n    time.sleep(pause)",  # a program that a test ends
        "subprocess.run(['a'], timeout=HANG_SECONDS)",
        "subprocess.run(['a'], timeout=300)",
        "httpx.post(url, timeout=0.2)",  # a client that gives up, as the test asks
    ],
)
def test_what_a_condition_decides_is_fine(source: str) -> None:
    assert hopeful("some.py", source) == []


def test_the_machine_s_clock_counts_beside_a_virtual_one() -> None:
    source = "from tests.support.virtual_time import run_virtually\ntime.sleep(1)\n"
    assert len(hopeful("some.py", source)) == 1
