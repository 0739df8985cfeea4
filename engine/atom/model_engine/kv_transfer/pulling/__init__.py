"""Choose the pages that a consumer asks for and their producer, if they are worth their time."""
