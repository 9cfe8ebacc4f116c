/**
 * What a run was told about its output: the tokens that it begins with, and words that it contains or does not contain.
 */

/** @import { Trace } from "../../contract.d.ts" */

import { givenTokens } from "../../page/run_conditions.js";
import { tokenLabel } from "../../page/tokens.js";

/** The conditions of a trace's run as sentences; "" if there were none. @param {Trace} trace */
export function describeConditions(trace) {
  const { request } = trace;
  const given = givenTokens(trace);
  const quoted = (/** @type {string[]} */ words) => words.map((word) => `“${word}”`).join(", ");
  const sentences = [
    given.length > 0 && `The first tokens were given: ${given.map(tokenLabel).join(" · ")}.`,
    request.require?.length && `The output had to contain ${quoted(request.require)}.`,
    request.forbid?.length && `The output could not contain ${quoted(request.forbid)}.`,
  ];
  return sentences.filter((sentence) => typeof sentence === "string").join(" ");
}
