// The state of a sale at a given moment. The server's reply is some seconds old, and a start or an end may have passed
// since.

/** @type {(sale: Pick<PublicSale, 'state' | 'starts_at' | 'ends_at'>, now: number | null) => SaleState} */
export function stateAt(sale, now) {
    if (now === null) {
        return sale.state;
    }
    if (['open', 'scheduled', 'paused'].includes(sale.state) && now >= Date.parse(sale.ends_at)) {
        return 'closed';
    }
    return sale.state === 'scheduled' && now >= Date.parse(sale.starts_at) ? 'open' : sale.state;
}

// Whether shoppers get in line before the sale starts.
/** @type {(sale: Pick<PublicSale, 'state' | 'guards'>) => boolean} */
export const mayQueue = (sale) => sale.state === 'scheduled' && sale.guards.waiting_room;

/** @type {(sale: Pick<PublicSale, 'state' | 'guards'>) => boolean} */
export const isOffered = (sale) => sale.state === 'open' || mayQueue(sale);

// The moment to count down to, and the keys for its label and date. There is none for a closed sale. There is none for a
// draft either, because a draft does not start by itself.
/**
 * @typedef {{ word: string, date?: undefined, until: null } | { word: string, date: string, until: number }} Timing
 * @type {(sale: Pick<PublicSale, 'starts_at' | 'ends_at'>, state: SaleState) => Timing}
 */
export function timeOf(sale, state) {
    switch (state) {
        case 'draft':
            return { word: 'isDraft', until: null };
        case 'scheduled':
            return { word: 'startsIn', date: 'startsOn', until: Date.parse(sale.starts_at) };
        case 'open':
        case 'paused':
            return { word: 'endsIn', date: 'endsOn', until: Date.parse(sale.ends_at) };
        default:
            return { word: 'isOver', until: null };
    }
}
