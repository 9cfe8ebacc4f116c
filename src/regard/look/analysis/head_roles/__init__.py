"""What heads do: which tokens, words and syntactic governors each head attends to, over a dev set."""
