"""AtomProfiles: which one a spec takes, who may take it, and what is laid below a spec."""
