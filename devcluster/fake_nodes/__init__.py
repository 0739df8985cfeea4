"""AMD GPUs and nodes as Kubernetes shows them, with no device and no machine behind them."""
