"""Parts of tools/train_demo_model.py: the corpus, the vocabulary, the model and the scoring.

Everything here needs only torch, tokenizers and safetensors (and PyYAML for the list of test
questions), so that the demo checkpoint can be made again without the engine or transformers.
"""
