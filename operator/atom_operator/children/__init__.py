"""Plan → every manifest that should exist; pure, one concept per file."""
