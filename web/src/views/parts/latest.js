/**
 * Answers come when they come, and by then a person may have asked for something else. Only the latest answer counts.
 */

/** Waits for answers and hands on the last that was asked for. */
export class Latest {
  turn = 0;

  /**
   * @template Answer
   * @param {Promise<Answer>} answer
   * @param {(answer: Answer) => void} show
   * @param {(sentence: string) => void} fail
   */
  take(answer, show, fail) {
    this.turn += 1;
    const mine = this.turn;
    answer.then(
      (value) => {
        if (mine === this.turn) show(value);
      },
      (/** @type {unknown} */ error) => {
        if (mine === this.turn) fail(sentence(error));
      },
    );
  }

  /** Whatever was asked for is no longer wanted. */
  forget() {
    this.turn += 1;
  }
}

/** What went wrong, as a sentence. @param {unknown} error */
export function sentence(error) {
  return error instanceof Error && error.message ? error.message : String(error);
}
