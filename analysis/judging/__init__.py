"""Which of two responses is better, by a judge: a language model, or a score of the responses."""
