/* Ranks guides above the API reference, and both above decisions and result pages. */
"use strict";

var Scorer = {
  score: ([page, title, anchor, description, score]) => {
    if (/^(decisions|results)\//.test(page)) return score - 200;
    return page === "api" ? score - 100 : score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
