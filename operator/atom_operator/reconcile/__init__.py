"""One pass over an AtomDeployment: observe, decide, carry out, report, and when to look again."""
