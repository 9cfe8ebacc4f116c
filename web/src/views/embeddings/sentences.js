/**
 * The sentences whose words are compared: the current text, and lines that the reader adds, in groups.
 */

/** @typedef {{ text: string, group: number }} Sentence */
/** @typedef {{ sentences: Sentence[], groups: string[] }} Grouped the name of group 0 is that of the current text */

const MAX_TEXT = 2000;
/** What the server takes, with the current text. */
export const MAX_SENTENCES = 63;

export const EXAMPLE = {
  sentences: [
    "# river",
    "She walked along the bank of the river.",
    "They fished from the bank of the river.",
    "The bank of the river was green.",
    "# money",
    "He put his money in the bank.",
    "I have no money in the bank.",
    "She took her money from the bank.",
  ].join("\n"),
  word: "bank",
  map_words: "bank",
};

/**
 * Lines as sentences. A line that begins with # names the group after it; an empty line begins a group too.
 * @param {string} current
 * @param {string} lines
 * @returns {Grouped}
 */
export function readSentences(current, lines) {
  const text = current.trim();
  /** @type {Sentence[]} */
  const sentences = text === "" || text.length > MAX_TEXT ? [] : [{ text, group: 0 }];
  const groups = ["this text"];
  let name = "";
  let isOpen = false;
  for (const line of lines.split("\n").map((each) => each.trim())) {
    if (line === "" || line.startsWith("#")) {
      isOpen = false;
      name = line.replace(/^#+\s*/, "");
      continue;
    }
    if (!isOpen) groups.push(name || `group ${groups.length}`);
    isOpen = true;
    sentences.push({ text: line, group: groups.length - 1 });
  }
  return { sentences, groups };
}

/**
 * The words that occur more than once, the longest first: long ones are rarely function words.
 * @param {Sentence[]} sentences
 */
export function repeatedWords(sentences) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const { text } of sentences)
    for (const word of text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? []) counts.set(word, (counts.get(word) ?? 0) + 1);
  const repeated = [...counts.keys()].filter((word) => (counts.get(word) ?? 0) > 1);
  return repeated.sort((a, b) => b.length - a.length || a.localeCompare(b));
}

/** Words separated by commas or spaces. @param {string} text */
export function listedWords(text) {
  return text.split(/[\s,;]+/).filter(Boolean);
}

/** The names of two groups. @param {string[]} groups @param {number} first @param {number} second */
export function pairName(groups, first, second) {
  return first === second ? `within ${groups[first]}` : `${groups[first]} and ${groups[second]}`;
}
