"""Check the files that changed: format, lint and the tests that belong to them, in a minute.

    make check                      # what changed against main
    make check FILES="engine/atom/model_engine/scheduler.py"
    python -m tools.check --all FILE # every test that can see the file

- `changed_files` asks git what changed.
- `import_graph` says how far each test file is from each source file, by imports (grimp).
- `selection` ranks the test files and cuts the list at the budget; pure.
- `__main__` runs ruff and pytest, and says which tests are left out.

Which test executes which line is not recorded: on Python 3.11 that needs a trace function, which
makes the suite slower by half. The graph needs no earlier run and is never out of date. Only
durations are recorded (tests/support/suite_record.py), in the checkout's cache folder: they differ
between machines, so they do not belong in git.
"""
