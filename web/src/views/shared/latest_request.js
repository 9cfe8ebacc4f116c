/**
 * Requests whose results may arrive late: only the result of the latest request is used.
 */

import { errorMessage } from "../../page/messages.js";

export class LatestRequest {
  latest = 0;

  /**
   * @template Result
   * @param {Promise<Result>} promise
   * @param {(result: Result) => void} onResult
   * @param {(message: string) => void} onError
   */
  start(promise, onResult, onError) {
    this.latest += 1;
    const current = this.latest;
    promise.then(
      (result) => {
        if (current === this.latest) onResult(result);
      },
      (/** @type {unknown} */ error) => {
        if (current === this.latest) onError(errorMessage(error));
      },
    );
  }

  /** Ignore the result of the latest request. */
  cancel() {
    this.latest += 1;
  }
}
