/**
 * Unpacking the data of a standalone file, which `regard/look/standalone_data.py` has packed: JSON in which arrays of numbers
 * are references, and their float32 values, both compressed with deflate and base64-encoded.
 */

/** @import { Embedded } from "../contract" */

import { base64Bytes } from "./float16.js";

/**
 * @param {string} content the text of the element #embedded
 * @returns {Promise<Embedded>}
 */
export async function unpack(content) {
  const packed = JSON.parse(content);
  const [json, numbers] = await Promise.all([inflate(packed.json), inflate(packed.float32)]);
  const values = new Float32Array(numbers.slice(0, numbers.byteLength - (numbers.byteLength % 4)));
  return JSON.parse(new TextDecoder().decode(json), (_, value) => {
    const reference = value?.float32;
    return Array.isArray(reference) ? shaped(values, reference[0], reference.slice(1)) : value;
  });
}

/**
 * Nested arrays with the values from `start` on, row by row.
 * @param {Float32Array} values
 * @param {number} start
 * @param {number[]} shape
 * @returns {any[]}
 */
function shaped(values, start, [length, ...rest]) {
  if (rest.length === 0) return Array.from(values.subarray(start, start + length));
  const size = rest.reduce((product, each) => product * each, 1);
  return Array.from({ length }, (_, index) => shaped(values, start + index * size, rest));
}

/** @param {string} text @returns {Promise<ArrayBuffer>} */
function inflate(text) {
  const stream = new Blob([base64Bytes(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}
