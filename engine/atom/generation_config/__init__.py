"""The settings of generation_config.json, and the sampling defaults that they give."""
