"""Example inputs that the page offers for each task: eight each, in the language that a model reads.

They show what is worth looking at: a word with two meanings, a pronoun, a question, a negation, a relative clause.
"""

from regard.task.masked_lm.pipeline import MASK

TRANSLATION = {
    "en": (
        "The cat ate the mouse.",
        "He sat on the bank of the river.",
        "She put the money in the bank.",
        "I have never been to Paris.",
        "Where did you buy these two books?",
        "The animal didn't cross the street because it was too tired.",
        "If it rains tomorrow, we will stay at home.",
        "Tom gave Mary the letter that his brother had written.",
    ),
    "de": (
        "Die Katze hat die Maus gefressen.",
        "Er saß im Park auf einer Bank.",
        "Sie brachte das Geld zur Bank.",
        "Ich bin noch nie in Paris gewesen.",
        "Wo hast du diese zwei Bücher gekauft?",
        "Das Tier ging nicht über die Straße, weil es zu müde war.",
        "Wenn es morgen regnet, bleiben wir zu Hause.",
        "Tom gab Maria den Brief, den sein Bruder geschrieben hatte.",
    ),
    "fr": (
        "Je suis étudiant.",
        "Le chat a mangé la souris.",
        "Elle a acheté un livre et une livre de beurre.",
        "Je ne suis jamais allé à Paris.",
        "Où as-tu acheté ces deux livres ?",
        "L'animal n'a pas traversé la rue parce qu'il était trop fatigué.",
        "S'il pleut demain, nous resterons à la maison.",
        "Tom a donné à Marie la lettre que son frère avait écrite.",
    ),
    "tr": (
        "Kedi fareyi yedi.",
        "Yüzünü yıkadı.",
        "Bana yüz lira verdi.",
        "Paris'e hiç gitmedim.",
        "Bu iki kitabı nereden aldın?",
        "Hayvan çok yorgun olduğu için karşıya geçmedi.",
        "Yarın yağmur yağarsa evde kalacağız.",
        "Tom, kardeşinin yazdığı mektubu Mary'ye verdi.",
    ),
}
"""Sentences to translate, by source language."""
PROMPTS = (
    "Once upon a time",
    "The old man sat by the sea and",
    "She opened the door and",
    "The first thing that he saw was",
    "To be, or not to be",
    "The king said to his son:",
    "It was a dark and stormy night, and",
    "Two men and a dog were walking",
)
SENTENCES = (
    "The cat ate the mouse.",
    "I saw the man with the telescope.",
    "Time flies like an arrow.",
    "They can fish.",
    "She will book a flight to Paris.",
    "The dog that chased the cat ran away.",
    "He said that Mary had left the left door open.",
    "What did you eat for breakfast?",
)
"""Sentences to parse or tag: many of their words can be several parts of speech, or belong to several phrases."""
MASKED = (
    f"The {MASK} ate the mouse.",
    f"He sat on the {MASK} of the river.",
    f"She opened the {MASK} and looked outside.",
    f"I drink a cup of {MASK} every morning.",
    f"They went to the {MASK} to buy some bread.",
    f"He did not {MASK} because he was too tired.",
    f"The house has a red {MASK} and two windows.",
    f"The {MASK} sat on the {MASK}.",
)
PASSAGES = (
    "The cat ate the mouse.",
    "The committee will meet on Tuesday to discuss the new budget.",
    "The team won the match in the last minute and the crowd went wild.",
    "The experiment was repeated at three temperatures, and the results agree with the theory.",
    "She kissed him once more, and then she closed the door behind her.",
    "The detective looked at the gun on the floor and said nothing.",
    "What a wonderful film: I laughed from beginning to end.",
    "This book is far too long, and its heroes are dull.",
)
"""Texts to classify: news, science, fiction and reviews."""
