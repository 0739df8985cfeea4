"""The admission webhook: the plan as warnings, and refusals of what cannot ever run."""
