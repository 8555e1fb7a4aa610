// What a sale is at a moment: the server said it a while ago, and its times go on by themselves.

export function stateAt(sale, now) {
    if (now === null) {
        return sale.state;
    }
    if (['open', 'scheduled', 'paused'].includes(sale.state) && now >= Date.parse(sale.ends_at)) {
        return 'closed';
    }
    return sale.state === 'scheduled' && now >= Date.parse(sale.starts_at) ? 'open' : sale.state;
}

// What is counted down to, and the words for it and for its date; nothing when the sale is over, or a draft: that does not
// start by itself.
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
