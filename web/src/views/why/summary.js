/**
 * What the numbers of a choice say, in sentences.
 */

/** @import { Contrast, Trace } from "../../contract" */

import { feedForwardLabel, formatFixed, formatPercent, headLabel } from "../../page/format.js";
import { tokenLabel } from "../../page/tokens.js";
import { wordLabel } from "./names.js";

/** The choice itself: both probabilities and the margin. @param {Contrast} contrast */
export function describeChoice(contrast) {
  const { token, contrast: other, probability, contrast_probability: otherProbability, margin } = contrast;
  const [written, instead] = [tokenLabel(token), tokenLabel(other)];
  const pieces = contrast.contrast_tokens.map(tokenLabel);
  const rest = pieces.length > 1 ? ` (the text would go on: ${pieces.join(" + ")})` : "";
  return (
    `After reading “${tokenLabel(contrast.read)}”, the model gives “${written}” ${formatPercent(probability)} and ` +
    `“${instead}” ${formatPercent(otherProbability)}${rest}: the margin log p(${written}) − log p(${instead}) ` +
    `is ${formatFixed(margin)}.`
  );
}

/**
 * The largest causes on either side: a head, a feed-forward network and a word, and what the margin becomes without each.
 * Two sentences at most; none if nothing was measured.
 * @param {Contrast} contrast @param {Trace} trace
 */
export function describeCauses(contrast, trace) {
  const causes = [
    ...contrast.heads.map((head) => ({ kind: "head", name: headLabel(head), change: head.change })),
    ...contrast.feed_forwards.map((network) => ({ kind: "network", name: feedForwardLabel(network), change: network.change })),
    ...contrast.words.map((word) => ({
      kind: "word",
      name: wordName(contrast, trace, word),
      change: word.change,
    })),
  ];
  const sides = [-1, 1].map((sign) =>
    ["head", "network", "word"].flatMap((kind) => {
      const some = causes.filter((cause) => cause.kind === kind && sign * cause.change >= SMALLEST);
      return some.length === 0 ? [] : [some.reduce((a, b) => (sign * b.change > sign * a.change ? b : a))];
    }),
  );
  return sides.filter((side) => side.length > 0).map((side) => sentence(contrast, side));
}

/** A word of the source or target, by its number if there are several like it. @param {Contrast} contrast @param {Trace} trace @param {Contrast["words"][number]} word */
function wordName({ words }, trace, word) {
  const label = wordLabel(trace, word);
  const side = words.filter((other) => other.side === word.side);
  const isUnique = side.every((other) => other === word || wordLabel(trace, other) !== label);
  const isOnlySide = side.length === words.length; // a language model has no source
  return `the ${isOnlySide ? "" : `${word.side} `}word “${label}”${isUnique ? "" : ` (number ${side.indexOf(word) + 1})`}`;
}

/** The smallest change of the margin that is worth a sentence: less is written as 0.00. */
const SMALLEST = 0.005;

/** What the margin becomes without each of some causes, all on one side. @param {Contrast} contrast @param {{ name: string, change: number }[]} causes */
function sentence({ margin, token, contrast }, causes) {
  const [written, other] = [tokenLabel(token), tokenLabel(contrast)];
  const parts = causes.map(({ name, change }, index) => {
    const verb = change < 0 ? "falls" : "rises";
    const subject = index === 0 ? `the margin log p(${written}) − log p(${other}) ${verb}` : `it ${verb}`;
    const from = index === 0 ? ` from ${formatFixed(margin)}` : "";
    const turns = margin >= 0 !== margin + change >= 0;
    const turn = turns ? `, which makes “${margin + change < 0 ? other : written}” the likelier of the two` : "";
    return `without ${name} ${subject}${from} to ${formatFixed(margin + change)}${turn}`;
  });
  const text = `${parts.join("; ")}.`;
  return text.charAt(0).toUpperCase() + text.slice(1);
}
