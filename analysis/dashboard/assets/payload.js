const ARRAYS = {
  f4: Float32Array,
  f8: Float64Array,
  u1: Uint8Array,
  u2: Uint16Array,
  u4: Uint32Array,
};

// The arrays of the page, in the order of their index.
async function decodePayload(index, text) {
  const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  let offset = 0;
  return index.map(({ type, length }) => {
    const kind = ARRAYS[type];
    const size = kind.BYTES_PER_ELEMENT;
    const whole = new Uint8Array(length * size);
    for (let plane = 0; plane < size; plane++) {
      for (let i = 0; i < length; i++) whole[i * size + plane] = bytes[offset++];
    }
    return new kind(whole.buffer);
  });
}
