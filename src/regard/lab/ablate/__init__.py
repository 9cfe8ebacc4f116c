"""`regard ablate`: variations of one recipe, each changing one thing."""
