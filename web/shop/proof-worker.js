// Searches for the counter that solves a proof of work (ALTCHA, version 2, SHA-256). The derived key must start with the
// challenge's prefix. A key is the digest of salt, nonce and counter, applied `cost` times.

const COUNTERS_MAX = 1_000_000;

const fromHex = (text) => Uint8Array.from(text.match(/../g) ?? [], (byte) => Number.parseInt(byte, 16));
const toHex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');

/** @type {(parameters: ProofParameters, start: Uint8Array, counter: number) => Promise<string>} */
async function keyOf(parameters, start, counter) {
    const first = new Uint8Array(start.length + 4);
    first.set(start);
    new DataView(first.buffer).setUint32(start.length, counter);
    /** @type {Uint8Array<ArrayBuffer> | ArrayBuffer} */
    let data = first;
    for (let round = 0; round < Math.max(1, parameters.cost); round += 1) {
        data = await crypto.subtle.digest('SHA-256', data);
    }
    return toHex(new Uint8Array(data).slice(0, parameters.keyLength));
}

addEventListener('message', async ({ data }) => {
    /** @type {{ parameters: ProofParameters, from: number, step: number }} */
    const { parameters, from, step } = data;
    const start = new Uint8Array([...fromHex(parameters.salt), ...fromHex(parameters.nonce)]);
    for (let counter = from; counter < COUNTERS_MAX; counter += step) {
        const key = await keyOf(parameters, start, counter);
        if (key.startsWith(parameters.keyPrefix)) {
            postMessage({ counter, derivedKey: key });
            return;
        }
    }
    postMessage(null);
});
