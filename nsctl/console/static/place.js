// Where the page is: the view and its parameters are the part of the address after "#".

export function place() {
  const [name, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { name: name || "overview", parameters: Object.fromEntries(new URLSearchParams(query)) };
}

export function href(view, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value != null);
  return `#/${view}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

export const topicHref = (name) => href("topic", { name });
export const brokerHref = (cluster, name) => href("broker", { cluster, name });

// The same view with other parameters, without a new entry in the browser's history.
export function change(view, parameters) {
  history.replaceState(null, "", href(view, parameters));
}
