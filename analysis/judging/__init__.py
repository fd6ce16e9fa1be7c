"""Which of two responses is better, by a judge: a language model, a score of the responses, or people."""
