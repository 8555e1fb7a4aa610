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
