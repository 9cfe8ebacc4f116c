/**
 * Decoding float16, the format in which attention is sent: half the size of float32, and precise enough for display.
 */

/** @type {Float32Array | null} */
let table = null;

/** The values of all 65,536 float16 bit patterns, computed once. */
function float16Values() {
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
export function decodeFloat16(bits) {
  const decoded = float16Values();
  const values = new Float32Array(bits.length);
  for (let index = 0; index < bits.length; index++) values[index] = decoded[bits[index]];
  return values;
}

/**
 * @param {ArrayBuffer} buffer little-endian
 * @returns {Float32Array}
 */
export function decodeFloat16Buffer(buffer) {
  return decodeFloat16(new Uint16Array(buffer, 0, buffer.byteLength >> 1));
}

/**
 * @param {string} text base64
 * @returns {Uint16Array}
 */
export function decodeBase64(text) {
  const bytes = base64Bytes(text);
  return new Uint16Array(bytes.buffer, 0, bytes.length >> 1);
}

/** @param {string} text base64 */
export function base64Bytes(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let index = 0; index < binary.length; index++) bytes[index] = binary.charCodeAt(index);
  return bytes;
}
