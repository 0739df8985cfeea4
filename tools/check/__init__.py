"""Check the files that changed: format, lint and the tests that belong to them, in a minute.

    make check                      # what changed against main
    make check FILES="engine/atom/model_engine/scheduler.py"
    python -m tools.check --all FILE # every test that can see the file

- `changed_files` asks git what changed.
- `import_graph` says how far each test file is from each source file, by imports (grimp).
- `executions` corrects this by the index of the files that each test file executed in the last
  `make test` here.
- `selection` ranks the test files and cuts the list at the budget; pure.
- `__main__` runs ruff and pytest, and says which tests are left out.

The graph needs no earlier run and is never out of date. The index knows calls that no import shows,
and imports that nothing calls; it has files and not lines, which cost the suite hardly any time
(tests/support/executed_files.py). Index and durations (tests/support/suite_record.py) are in the
checkout's cache folder: they differ between machines, so they do not belong in git.
"""
