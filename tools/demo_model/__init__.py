"""Parts of tools/train_demo_model.py: the corpus, the vocabulary, the model and the scoring.

Everything here computes with torch, tokenizers and safetensors alone (and PyYAML for the list of
test questions): of the engine and the operator only facts.py takes anything, what they say of
themselves.
"""
