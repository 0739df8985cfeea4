"""Model architectures, one family per file, those with states in `hybrid`; `registry` finds them by
Hugging Face name. All are a `decoder`."""
