"""Run the tests in parts side by side and sum them up: `make test`, `make test-all`.

- `parts` says which commands a suite has; pure.
- `skips` says who owns a skip: a card, a package, a backend; any other skip is a debt.
- `waits` refuses tests that hope for time to pass; `make lint` runs it.
- `summary` turns the parts' records into the last lines of the run; pure.
- `__main__` runs the parts, prints each one's output when it ends, and the summary.

`test` proves that a commit works: each class of fault by its smallest instance. `all` runs only
what `test` leaves out: the tests marked `whole` and the tests beside other projects' controllers.
Tests marked `slow` are in `make test-long`.
"""
