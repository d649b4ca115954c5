// Text is only set as text: nothing that a model or an environment wrote becomes markup.

const SVG = "http://www.w3.org/2000/svg";

/** Create an element with properties or attributes and children, without children that are null. */
function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Create an SVG element with attributes. */
function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Format a number with as many digits as a reader needs. */
function format(value, isRate = false) {
  if (isRate) return value.toFixed(2);
  const size = Math.abs(value);
  if (size && size < 0.001) return value < 0 ? "> -0.001" : "< 0.001";
  if (size >= 1000 || Number.isInteger(value)) return Math.round(value).toLocaleString("en-US");
  if (size >= 1) return value.toFixed(2);
  return String(Number(value.toPrecision(3)));
}

const data = JSON.parse(document.getElementById("data").textContent);
