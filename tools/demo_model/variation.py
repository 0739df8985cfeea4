"""Says the same thing in other words: the ways to ask for a definition, and how people really type.

Pure functions over strings and a seeded random generator; what they return is what makes the demo
model answer a question that its files do not hold word for word. Knows nothing of tokens.
"""

import re
from random import Random

DEFINITION_FORMS = (
    "What is {}?",
    "What is {}?",
    "What's {}?",
    "What does {} mean?",
    "What do you mean by {}?",
    "Explain {}.",
    "Explain {} to me.",
    "Can you explain {}?",
    "Could you explain what {} is?",
    "Define {}.",
    "Describe {}.",
    "Tell me about {}.",
    "Tell me what {} is.",
    "Give me a short explanation of {}.",
    "I want to know what {} is.",
    "I would like to know about {}.",
    "What is meant by {}?",
    "What exactly is {}?",
    "What can you tell me about {}?",
    "Do you know what {} is?",
    "How would you describe {}?",
    "In one sentence, what is {}?",
    "{}?",
    "{}",
)
# how a question begins, and other beginnings of the same question; "{}" is its rest
REPHRASINGS = (
    (
        r"How do I (.+)",
        (
            "How can I {}?",
            "How could I {}?",
            "How would I {}?",
            "How to {}?",
            "Tell me how to {}.",
            "Explain how to {}.",
            "I want to {}, how do I do that?",
            "What is the way to {}?",
            "What must I do to {}?",
            "Can you tell me how to {}?",
        ),
    ),
    (
        r"What does (.+) do",
        (
            "What is {} for?",
            "What is {} used for?",
            "What is the purpose of {}?",
            "What is the task of {}?",
            "What is the role of {}?",
            "Explain what {} does.",
            "Tell me what {} does.",
        ),
    ),
    (
        r"How does (.+) work",
        (
            "Explain how {} works.",
            "Describe how {} works.",
            "Tell me how {} works.",
            "Can you explain how {} works?",
            "In what way does {} work?",
        ),
    ),
    (r"What happens when (.+)", ("What happens if {}?", "What if {}?", "And when {}?")),
    (r"What happens if (.+)", ("What happens when {}?", "What will happen if {}?")),
    (r"Which (.+)", ("What {}?", "Tell me which {}.")),
    (r"What ([a-z]+ (?:are|does|do|can|has|have) .+)", ("Which {}?",)),
    (r"Can I (.+)", ("Is it possible to {}?", "May I {}?", "Could I {}?")),
    (r"Where is (.+)", ("Where do I find {}?", "Where can I find {}?", "Where can I see {}?")),
    (r"Where are (.+)", ("Where do I find {}?", "Where can I find {}?", "Where can I see {}?")),
    (r"What is the difference between (.+)", ("How do {} differ?", "Compare {}.")),
    (r"Why (?:is|are|do|does|did) .+", ("Tell me: {0}?", "Do you know {0}?")),
)
OPENINGS = (
    "Please tell me: ",
    "Tell me, ",
    "Do you know: ",
    "Can you tell me: ",
    "Hi, ",
    "Hello! ",
    "Hey, ",
    "Question: ",
    "I have a question. ",
    "Quick question: ",
    "Sorry, ",
    "Ok, ",
    "So, ",
    "And ",
    "Now ",
    "Thanks. ",
    "I am new here. ",
    "Please answer briefly: ",
    "One more thing: ",
)
CLOSINGS = (
    " Please.",
    " Thanks!",
    " Thank you.",
    " Please be brief.",
    " Answer in one sentence.",
    " I am curious.",
    " Explain it simply.",
)
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant. Answer briefly.",
    "You are a helpful AI assistant.",
    "You are a concise assistant.",
    "You are Atom Tiny, the demo model of ATOM.",
    "You answer questions about ATOM, LLM serving and Kubernetes.",
    "Answer in one or two sentences.",
    "Answer the user's question.",
    "Be brief and correct.",
    "You are an expert in Kubernetes and LLM inference.",
    "You are a friendly assistant for platform engineers. Be polite and keep your answers short.",
    "You help developers who deploy language models on AMD GPUs. If you do not know, say so.",
)


def ask_definition(term: str, random: Random) -> str:
    """One of the usual ways to ask what `term` is."""
    text = random.choice(DEFINITION_FORMS).format(term)
    return text[:1].upper() + text[1:]


def rephrase(question: str, random: Random) -> str:
    """The question with another beginning, where one of the rephrasings fits."""
    bare = question.rstrip("?.")
    for pattern, forms in REPHRASINGS:
        found = re.fullmatch(pattern, bare)
        if found:
            rest = found.group(1) if found.groups() else bare[:1].lower() + bare[1:]
            return random.choice(forms).format(rest)
    return question


def _mistype(text: str, random: Random) -> str:
    """Drops, doubles or swaps one entry inside a long word: short ones may become other words."""
    words = text.split(" ")
    long_words = [index for index, word in enumerate(words) if len(word) >= 5]
    if not long_words:
        return text
    chosen = random.choice(long_words)
    word = words[chosen]
    at = random.randrange(1, len(word) - 2)
    words[chosen] = random.choice(
        (
            word[:at] + word[at + 1 :],
            word[:at] + word[at] + word[at:],
            word[:at] + word[at + 1] + word[at] + word[at + 2 :],
        )
    )
    return " ".join(words)


def _drop_little_word(text: str, random: Random) -> str:
    """The text without one of its short words: keywords should carry the meaning."""
    words = text.split(" ")
    little = [index for index, word in enumerate(words) if len(word) <= 4 and word.islower()]
    if len(words) < 4 or not little:
        return text
    del words[random.choice(little)]
    return " ".join(words)


def as_typed(question: str, random: Random) -> str:
    """Rewrite a question as a user types it: politeness, entry case, punctuation and a slip."""
    text = rephrase(question, random) if random.random() < 0.4 else question
    if random.random() < 0.10:
        text = _drop_little_word(text, random)
    if random.random() < 0.15:
        opening = random.choice(OPENINGS)
        text = opening + (text[:1].lower() + text[1:] if random.random() < 0.5 else text)
    if random.random() < 0.10:
        text = text + random.choice(CLOSINGS)
    style = random.random()
    if style < 0.25:
        text = text.lower()
    elif style < 0.29:
        text = text.upper()
    elif style < 0.34:
        text = text[:1].lower() + text[1:]
    if random.random() < 0.25:
        text = text.rstrip("?.! ")
    if random.random() < 0.10:
        text = text.replace("'", "").replace(",", "").replace("-", " ")
    if random.random() < 0.08:
        text = _mistype(text, random)
    return text


def pick_system(random: Random) -> str | None:
    """A system prompt, or none: answers must not depend on it."""
    return random.choice(SYSTEM_PROMPTS) if random.random() < 0.5 else None
