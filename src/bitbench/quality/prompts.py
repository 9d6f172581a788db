"""The fixed questions whose greedy answers are compared. Each needs another skill; none is long."""

QUESTIONS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Count from one to ten.",
    "What is 17 plus 25?",
    "Translate to French: Good morning, my friend.",
    "Write a Python function that returns the larger of two numbers.",
    "Name three fruits that are red.",
    "Explain in two sentences why the sky is blue.",
    "Complete the saying: An apple a day keeps",
    "Give the opposite of each word: hot, tall, early.",
    'Write a JSON object with the keys "name" and "age" for a person called Ada who is 36.',
    "Summarize in one sentence: The train was late because a tree had fallen onto the track during the storm.",
)
