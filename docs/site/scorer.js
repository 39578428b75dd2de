// The order of search results: how to do a thing, then what a name means, then how it came to be.
const ORDER = [
  [/^(tutorials\/|guide\/|index$)/, 40],
  [/^reference\/api\//, 0],
  [/^reference\/changes\//, -10],
  [/^(reference|gallery)\//, 20],
  [/^internals\/(architecture|contributing)$/, 10],
];
const TEST = /\.test_/; // methods of the suites that components inherit

var Scorer = {
  score: ([page, title, , , score]) =>
    score + (TEST.test(title) ? -20 : 0) + (ORDER.find(([pattern]) => pattern.test(page)) ?? [null, -10])[1],
  // Sphinx's own, which this object replaces.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
