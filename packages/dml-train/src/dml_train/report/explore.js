"use strict";
// Items are numbered from 0. Numbers from data.count on are neighbours that aren't on this page.
const data = JSON.parse(document.getElementById("data").textContent);
const canvas = document.getElementById("map");
const panel = document.getElementById("panel");
const colour = document.getElementById("colour");
const MOST_SHOWN = 200; // items or classes in a list
const MOST_PICTURES = 1000; // on the map
const PICTURE = 40; // pixels on the map
const TITLES = {
  wrong: "Wrong at rank 1, most similar first", suspects: "Suspect labels",
  duplicates: "Near-duplicates with different labels", outliers: "Outliers, farthest first",
};

// Elements. Names from the data only become text, never HTML.

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const nameOf = (item) => data.names[data.labels[item]];
const isShown = (item) => item < data.count;
const number = (value) => value.toLocaleString("en");

const sheets = new Map();
function sheetOf(item) {
  const index = Math.floor(item / data.tiles ** 2);
  if (!sheets.has(index)) {
    const source = document.getElementById(`sheet-${index}`);
    const image = source && new Image();
    if (image) {
      image.src = `data:image/webp;base64,${source.textContent}`;
      image.decode().then(draw, () => {});
    }
    sheets.set(index, image);
  }
  return sheets.get(index);
}

function drawPicture(context, item, x, y, side) {
  const sheet = sheetOf(item);
  if (!sheet || !sheet.complete) return false;
  const place = item % data.tiles ** 2;
  const left = (place % data.tiles) * data.side, top = Math.floor(place / data.tiles) * data.side;
  context.drawImage(sheet, left, top, data.side, data.side, x, y, side, side);
  return true;
}

function pictureOf(item, kind = "") {
  if (!isShown(item) || !sheetOf(item)) return "";
  const picture = make("canvas", { className: `picture ${kind}`, width: data.side, height: data.side });
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", `${nameOf(item)}, ${data.files[item]}`);
  sheetOf(item).decode().then(
    () => drawPicture(picture.getContext("2d"), item, 0, 0, data.side), () => {});
  return picture;
}

function card(item, mark = "", kind = "") {
  const text = [make("span", { className: "mark" }, mark), " ", nameOf(item)];
  const inner = isShown(item)
    ? make("a", { href: `#item=${item}` }, pictureOf(item), ...text)
    : make("span", {}, ...text, ` (${data.files[item]}, not on this page)`);
  return make("li", { className: kind }, inner);
}

const cards = (items, mark = () => "") =>
  make("ul", { className: "cards" }, ...items.slice(0, MOST_SHOWN).map((item) => card(item, mark(item))));

function facts(entries) {
  return make("dl", {}, ...entries.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

const linkToClass = (label) => make("a", { href: `#class=${label}` }, data.names[label]);

// Classes and pairs of classes.

const members = data.names.map(() => []);
for (let item = 0; item < data.count; item++) members[data.labels[item]].push(item);
const isWrong = (item) => data.matched[item] && !data.right[item][0];

function recall(label) {
  const [, matched, right] = data.classes[label];
  return matched ? right / matched : NaN;
}

function confusions(label) {
  const times = new Map();
  for (const item of members[label].filter(isWrong)) {
    const other = data.labels[data.nearest[item][0]];
    times.set(other, (times.get(other) || 0) + 1);
  }
  return [...times].sort((a, b) => b[1] - a[1]);
}

function crossPairs(a, b) {
  const found = new Map();
  for (const item of [...members[a], ...members[b]]) {
    const other = data.labels[item] === a ? b : a;
    data.nearest[item].forEach((near, place) => {
      if (near < 0 || !isShown(near) || data.labels[near] !== other) return;
      const pair = item < near ? [item, near] : [near, item];
      found.set(pair.join(), { pair, score: data.scores[item][place] });
    });
  }
  const sign = data.isDistance ? 1 : -1;
  return [...found.values()].sort((x, y) => sign * (x.score - y.score)).slice(0, 30);
}

// The panel shows what the address names: an item, a class, two classes, or a list.

const views = {
  item(text) {
    const item = Number(text);
    if (!(item >= 0 && item < data.count)) return views.help();
    mark([item, ...data.nearest[item].filter((near) => near >= 0 && isShown(near))], item);
    const rank = data.rank[item];
    const near = data.nearest[item].map((other, place) => ({ other, place })).filter((n) => n.other >= 0);
    return [
      make("h2", {}, linkToClass(data.labels[item])), pictureOf(item, "large"),
      facts([
        ["file", data.files[item]],
        ["first match", near.length === 0 ? "an item of the gallery" : rank ? `rank ${number(rank)}` : "none"],
        ["suspicion", `${data.score[item].toFixed(3)}; neighbours suggest ${data.names[data.suggested[item]]}`],
      ]),
      make("h3", {}, near.length ? "Nearest" : ""),
      make("ol", { className: "cards" }, ...near.map(({ other, place }) => {
        const right = data.right[item][place];
        const label = `${right ? "✓" : "✗"} ${data.scores[item][place].toFixed(data.isDistance ? 2 : 4)}`;
        return card(other, label, right ? "right" : "wrong");
      })),
    ];
  },
  class(text) {
    const label = Number(text);
    if (!members[label]) return views.help();
    mark(members[label]);
    const [count, matched] = data.classes[label];
    const mixed = confusions(label);
    return [
      make("h2", {}, data.names[label]),
      facts([["items", number(count)], ["Recall@1", matched ? recall(label).toFixed(3) : "no matches"]]),
      make("h3", {}, mixed.length ? "Confused with" : ""),
      make("ul", { className: "rows" }, ...mixed.slice(0, 20).map(([other, times]) => make("li", {},
        make("a", { href: `#pair=${label},${other}` }, `${data.names[other]} (${number(times)})`)))),
      make("h3", {}, "Items"), cards(members[label], (item) => (isWrong(item) ? "✗" : "")),
    ];
  },
  pair(text) {
    const [a, b] = text.split(",").map(Number);
    if (!members[a] || !members[b]) return views.help();
    mark([...members[a], ...members[b]]);
    const pairs = crossPairs(a, b);
    return [
      make("h2", {}, linkToClass(a), " and ", linkToClass(b)),
      make("p", { className: "quiet" }, pairs.length
        ? "The nearest pairs of both classes among neighbours" : "No item has a neighbour of the other class."),
      ...pairs.map(({ pair }) => make("ul", { className: "cards pair" }, ...pair.map((item) => card(item)))),
    ];
  },
  list(name) {
    const items = data.lists[name];
    if (!items) return views.help();
    mark(items.flat());
    const about = {
      wrong: (item) => data.scores[item][0].toFixed(4), suspects: (item) => data.score[item].toFixed(3),
      outliers: (item) => (data.distance[item] === null ? "" : data.distance[item].toFixed(3)),
    }[name];
    const count = make("p", { className: "quiet" },
      items.length > MOST_SHOWN ? `The first ${MOST_SHOWN} of ${number(items.length)}` : `${number(items.length)} found`);
    const shown = name === "duplicates"
      ? items.slice(0, MOST_SHOWN).map((pair) => make("ul", { className: "cards pair" }, ...pair.map((item) => card(item))))
      : [cards(items, about)];
    return [make("h2", {}, TITLES[name]), count, ...shown];
  },
  classes() {
    mark([]);
    const list = make("ul", { className: "rows" });
    const input = make("input", { type: "search", placeholder: "name", id: "search" });
    const order = data.names.map((_, label) => label)
      .sort((a, b) => (isNaN(recall(a)) - isNaN(recall(b))) || recall(a) - recall(b));
    const fill = () => {
      const wanted = input.value.toLowerCase();
      const found = order.filter((label) => data.names[label].toLowerCase().includes(wanted));
      list.replaceChildren(...found.slice(0, MOST_SHOWN).map((label) => make("li", {},
        make("a", { href: `#class=${label}` }, data.names[label], make("span", { className: "quiet" },
          ` ${number(data.classes[label][0])} items, Recall@1 ${isNaN(recall(label)) ? "–" : recall(label).toFixed(3)}`)))));
    };
    input.addEventListener("input", fill);
    fill();
    return [make("h2", {}, `${number(data.names.length)} classes, lowest Recall@1 first`),
      make("label", {}, "Search ", input), list];
  },
  help() {
    mark([]);
    return [make("h2", {}, `${number(data.count)} items, ${number(data.names.length)} classes`),
      make("p", {}, "Select an item on the map, or a list above. Drag to move the map, and scroll, pinch or press + to zoom; "
        + "pictures appear when you zoom in.")];
  },
};

function show() {
  const [view, text] = location.hash.slice(1).split("=");
  panel.replaceChildren(...(Object.hasOwn(views, view) ? views[view](text || "") : views.help()));
  panel.scrollTop = 0;
  draw();
}

// The map.

let marked = new Set(), centred = null;
const camera = { x: 0, y: 0, zoom: 1 };

function mark(items, centre = null) {
  marked = new Set(items);
  centred = centre;
}

const scale = () => 0.47 * Math.min(canvas.clientWidth, canvas.clientHeight) * camera.zoom;
const toScreen = ([x, y]) => [
  canvas.clientWidth / 2 + (x - camera.x) * scale(), canvas.clientHeight / 2 - (y - camera.y) * scale()];

function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const ramp = (share) => `hsl(${220 - 210 * share} 75% ${isDark ? 62 : 45}%)`;
  return {
    ink: of("--ink"), quiet: of("--rule"),
    class: (item) => `hsl(${(data.labels[item] * 222.5) % 360} 65% ${isDark ? 62 : 45}%)`,
    right: (item) => (!data.matched[item] ? of("--quiet") : isWrong(item) ? of("--wrong") : of("--right")),
    rank: (item) => (data.rank[item] ? ramp(Math.min(1, Math.log10(data.rank[item]) / 3)) : of("--quiet")),
    score: (item) => ramp(data.score[item]),
  };
}

const LEGENDS = {
  class: "One colour per class; similar colours repeat.",
  right: "Green: the nearest neighbour matches. Red and larger: it doesn't. Grey: no match exists.",
  rank: "Blue: the first match has rank 1. Red: rank 1,000 or more. Grey: no match exists.",
  score: "Blue: neighbours agree with the label. Red: they disagree.",
};

let waiting = false;
function draw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    paint();
  });
}

function paint() {
  const ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d"), theme = colours(), pick = theme[colour.value];
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  const visible = [];
  for (let item = 0; item < data.count; item++) {
    const [x, y] = toScreen(data.points[item]);
    if (x > -PICTURE && y > -PICTURE && x < width + PICTURE && y < height + PICTURE) visible.push([item, x, y]);
  }
  const isMarked = ([item]) => marked.has(item);
  const order = marked.size ? [...visible.filter((v) => !isMarked(v)), ...visible.filter(isMarked)] : visible;
  const hasPictures = visible.length <= MOST_PICTURES && (camera.zoom > 2 || data.count <= MOST_PICTURES);
  for (const [item, x, y] of order) {
    const isDim = marked.size && !marked.has(item);
    const side = colour.value === "right" && isWrong(item) ? 7 : marked.has(item) ? 6 : 4;
    context.globalAlpha = isDim ? 0.25 : 1;
    context.fillStyle = pick(item);
    if (hasPictures && drawPicture(context, item, x - PICTURE / 2, y - PICTURE / 2, PICTURE)) {
      context.fillRect(x - PICTURE / 2, y + PICTURE / 2, PICTURE, 3);
    } else {
      context.fillRect(x - side / 2, y - side / 2, side, side);
    }
    if (item === centred) {
      const ring = hasPictures ? PICTURE * 0.75 : 9;
      context.globalAlpha = 1;
      context.strokeStyle = theme.ink;
      context.lineWidth = 2.5;
      context.beginPath();
      context.arc(x, y, ring, 0, 7);
      context.stroke();
    }
  }
  context.globalAlpha = 1;
  document.getElementById("legend").textContent = LEGENDS[colour.value];
}

function nearestItem(x, y, within) {
  let best = -1, least = within ** 2;
  for (let item = 0; item < data.count; item++) {
    const [a, b] = toScreen(data.points[item]);
    const distance = (a - x) ** 2 + (b - y) ** 2;
    if (distance < least) [best, least] = [item, distance];
  }
  return best;
}

function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
  const before = scale();
  camera.zoom = Math.min(400, Math.max(0.5, camera.zoom * factor));
  const change = 1 / before - 1 / scale();
  camera.x += (x - canvas.clientWidth / 2) * change;
  camera.y -= (y - canvas.clientHeight / 2) * change;
  draw();
}

function move(dx, dy) {
  camera.x -= dx / scale();
  camera.y += dy / scale();
  draw();
}

const fingers = new Map();
let moved = 0;
canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId);
  fingers.set(event.pointerId, event);
  if (fingers.size === 1) moved = 0;
});
canvas.addEventListener("pointermove", (event) => {
  const last = fingers.get(event.pointerId);
  if (!last) return;
  const [dx, dy] = [event.offsetX - last.offsetX, event.offsetY - last.offsetY];
  moved += Math.abs(dx) + Math.abs(dy);
  const other = [...fingers.values()].find((finger) => finger.pointerId !== event.pointerId);
  if (other) {
    const length = (finger) => Math.hypot(finger.offsetX - other.offsetX, finger.offsetY - other.offsetY);
    zoom(length(event) / Math.max(1, length(last)), other.offsetX, other.offsetY);
  } else {
    move(dx, dy);
  }
  fingers.set(event.pointerId, event);
});
for (const end of ["pointerup", "pointercancel"]) {
  canvas.addEventListener(end, (event) => {
    const isTap = end === "pointerup" && fingers.size === 1 && moved < 6;
    fingers.delete(event.pointerId);
    const item = isTap ? nearestItem(event.offsetX, event.offsetY, 20) : -1;
    if (item >= 0) location.hash = `item=${item}`;
  });
}
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  zoom(Math.exp(-event.deltaY / 300), event.offsetX, event.offsetY);
}, { passive: false });
canvas.addEventListener("keydown", (event) => {
  const steps = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
  if (steps[event.key]) move(...steps[event.key]);
  else if (event.key === "+" || event.key === "=") zoom(1.4);
  else if (event.key === "-") zoom(1 / 1.4);
  else if (event.key === "Enter") {
    const item = nearestItem(canvas.clientWidth / 2, canvas.clientHeight / 2, Infinity);
    if (item >= 0) location.hash = `item=${item}`;
  } else return;
  event.preventDefault();
});
colour.addEventListener("change", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
new ResizeObserver(draw).observe(canvas);
addEventListener("hashchange", show);
show();
