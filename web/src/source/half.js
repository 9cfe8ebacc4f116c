/**
 * Numbers of 16 bits, as the server sends attention: half the bytes, and three digits are more than an eye can see.
 */

/** @type {Float32Array | null} */
let table = null;

/** All 65,536 of them, made once. */
function halves() {
  if (table !== null) return table;
  table = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const sign = bits & 0x8000 ? -1 : 1;
    const exponent = (bits >> 10) & 0x1f;
    const fraction = bits & 0x3ff;
    if (exponent === 0) table[bits] = sign * fraction * 2 ** -24;
    else if (exponent === 31) table[bits] = fraction === 0 ? sign * Infinity : NaN;
    else table[bits] = sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  }
  return table;
}

/**
 * @param {Uint16Array} bits
 * @returns {Float32Array}
 */
export function widen(bits) {
  const known = halves();
  const values = new Float32Array(bits.length);
  for (let index = 0; index < bits.length; index++) values[index] = known[bits[index]];
  return values;
}

/**
 * @param {ArrayBuffer} buffer little-endian
 * @returns {Float32Array}
 */
export function readHalves(buffer) {
  return widen(new Uint16Array(buffer, 0, buffer.byteLength >> 1));
}

/**
 * @param {string} text base64
 * @returns {Uint16Array}
 */
export function readBase64(text) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let index = 0; index < letters.length; index++) bytes[index] = letters.charCodeAt(index);
  return new Uint16Array(bytes.buffer, 0, bytes.length >> 1);
}
