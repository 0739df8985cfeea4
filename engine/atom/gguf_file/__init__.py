"""A model in one GGUF file, as llama.cpp writes it: header, configuration, names, vocabulary."""
