"""Parts of the engine pod beside its main container: the init container, and limits."""
