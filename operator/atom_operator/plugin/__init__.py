"""`kubectl atom`: what people ask of running AtomDeployments, through their own kubectl."""
