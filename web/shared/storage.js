// What the browser keeps for us, for good or as long as the tab lives. Where it keeps nothing, because its owner has
// said so, memory stands in: then a reload forgets.

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
