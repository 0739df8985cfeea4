"""Model architectures, one family per file; `registry` finds them by Hugging Face name."""
