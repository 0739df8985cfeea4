"""Tables of measured rates, one JSON file a card; read by atom.advisor.rates, written by
benchmarks.step_rates."""
