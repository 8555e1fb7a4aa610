// Browser storage: lasting, or for the life of the tab. If the browser blocks it, memory stands in, and a reload loses the
// values.

/** @param {() => Storage} open */
function storage(open) {
    const memory = new Map();
    const real = () => {
        try {
            return open();
        } catch {
            return null;
        }
    };
    return {
        get(name) {
            return real()?.getItem(name) ?? memory.get(name) ?? null;
        },
        set(name, value) {
            try {
                real()?.setItem(name, value);
                memory.delete(name);
            } catch {
                memory.set(name, value);
            }
        },
        remove(name) {
            real()?.removeItem(name);
            memory.delete(name);
        },
    };
}

export const lasting = storage(() => window.localStorage);
export const ofTab = storage(() => window.sessionStorage);

// The JSON that this tab keeps under a name; null if there is none or it is damaged. `make` builds the value from it.
export function readOfTab(name, make = (json) => json) {
    try {
        return make(JSON.parse(ofTab.get(name) ?? 'null'));
    } catch {
        ofTab.remove(name);
        return make(null);
    }
}

// A map that this tab keeps as JSON under a name, with its newest `max` entries.
export function mapOfTab(name, max) {
    const read = () => readOfTab(name, (entries) => new Map(entries));
    function change(key, entry) {
        const all = read();
        // Moves the entry to the end: the oldest entry is dropped first.
        all.delete(key);
        ofTab.set(name, JSON.stringify([...all, ...entry].slice(-max)));
    }
    return {
        get: (key) => read().get(key),
        set: (key, value) => change(key, [[key, value]]),
        forget: (key) => change(key, []),
    };
}
